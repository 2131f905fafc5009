#!/bin/sh
{ # dislock: one file for every host. This shell part finds a Python and hands over to it; the rest of the file is a zip archive.
# DISLOCK_PYTHON names the interpreter; without it the newest python3.X on PATH that the archive supports is taken.
# In braces, since a shell would run the first half of a file that was cut short, and call it a success.
say() { printf 'dislock: %s\n' "$1" >&2; exit 2; }

# Never a program out of the working directory, which is what an empty or a relative part of PATH means.
# All variables begin with _dislock_: one that came exported would reach the command with what is put into it here.
IFS=:
set -f
_dislock_absolute=
for _dislock_folder in ${PATH-}; do
  case $_dislock_folder in /*) _dislock_absolute=$_dislock_absolute$_dislock_folder: ;; esac
done

# look_for NAME PATTERN: the first such program on PATH, but not in a folder like PATTERN.
look_for() {
  set -f
  for _dislock_folder in $_dislock_absolute; do
    case $_dislock_folder in $2) continue ;; esac
    _dislock_python=$_dislock_folder/$1
    [ -f "$_dislock_python" ] && [ -x "$_dislock_python" ] && return
  done
  _dislock_python=
  return 1
}
_dislock_names=python3.15:python3.14:python3.13:python3.12:python3.11:python3.10
# A version manager's shim is there whether or not its Python is, and takes ten times as long to start: the last resort.
find_python() {
  for _dislock_name in $_dislock_names; do
    look_for "$_dislock_name" '*/shims' && return
  done
  find_running
}
# find_running: the first one that says that it can serve, and one without natives (free-threaded) only if there is no other.
find_running() {
  set -f
  _dislock_reason=${_dislock_lacks:-}
  for _dislock_free in '' t; do
    for _dislock_name in $_dislock_names python3 python; do
      for _dislock_folder in $_dislock_absolute; do
        _dislock_python=$_dislock_folder/$_dislock_name
        [ -f "$_dislock_python" ] && [ -x "$_dislock_python" ] || continue
        _dislock_answer=$("$_dislock_python" -E -s -S -c 'import sys
if sys.version_info < (3, 10): sys.exit(3)
if sys.implementation.name != "cpython": print("-is " + sys.implementation.name); sys.exit()
from _frozen_importlib_external import PathFinder
absent = [n for n in "@NEEDED@".split() if n not in sys.builtin_module_names and not PathFinder.find_spec(n)]
print("-lacks " + ", ".join(absent) if absent else sys.executable if "t" not in sys.abiflags or sys.argv[1] else "")' "$_dislock_free" 2>/dev/null) || continue
        case $_dislock_answer in
          /*) _dislock_python=$_dislock_answer; return ;;
          -*) _dislock_reason=${_dislock_reason:-$_dislock_python ${_dislock_answer#-}} ;;
        esac
      done
    done
  done
  say "${_dislock_reason:+$_dislock_reason; }no ${_dislock_reason:+other }CPython 3.10 or newer on PATH (python3.10 to python3.15 were looked for); DISLOCK_PYTHON can name one"
}
if [ -n "${_dislock_lacks:-}" ]; then
  # From the program: the Python that was taken cannot serve. The environment was copied before, and still is there.
  find_running
elif [ -z "${DISLOCK_PYTHON:-}" ]; then
  find_python
else
  case $DISLOCK_PYTHON in */*) _dislock_python=$DISLOCK_PYTHON ;; *) look_for "$DISLOCK_PYTHON" '' ;; esac
  [ -f "$_dislock_python" ] && [ -x "$_dislock_python" ] || say "DISLOCK_PYTHON is $DISLOCK_PYTHON, and there is no such program"
fi

# A shell changes what it exports (PWD, SHLVL, names that are none in its language), and the command must get the environment as it
# came. So it is passed on as the kernel has it, and the program puts it back. The copy is three times as long, and there is a limit to
# what a program can be given: a larger environment is not copied.
_dislock_part=0
forget() { while [ "$_dislock_part" -gt 0 ]; do _dislock_part=$((_dislock_part - 1)); unset "DISLOCK_ENVIRON_$_dislock_part"; done; }
# An empty environment is one, too; but not for an od that prints nothing.
nothing() {
  [ "$_dislock_part" -eq 0 ] || return
  read -r _dislock_bytes <"/proc/$$/environ" || [ -n "$_dislock_bytes" ] || { export DISLOCK_ENVIRON_0=; _dislock_part=1; }
}
if [ -z "${_dislock_lacks:-}" ]; then
if [ /proc/self -ef "/proc/$$" ]; then
  while :; do
    # A caller's function may have that name.
    _dislock_bytes=$(PATH=$_dislock_absolute/usr/bin:/bin; command od -An -v -tx1 -j "$((_dislock_part * 40000))" -N 40000 "/proc/$$/environ" 2>/dev/null) || { forget; break; }
    [ -n "$_dislock_bytes" ] || { nothing; break; }
    export "DISLOCK_ENVIRON_$_dislock_part=$_dislock_bytes"
    _dislock_part=$((_dislock_part + 1))
    [ "${#_dislock_bytes}" -ge 119999 ] || break
    [ "$_dislock_part" -lt 10 ] || { forget; break; }
  done
fi
unset "DISLOCK_ENVIRON_$_dislock_part"
fi

# Isolated: nothing of the caller's PYTHON variables, user site, site-packages, or working directory. The last is taken off the path by
# the program, because -I would keep Python 2 from saying that it is too old. The program is read out of this file, instead of running
# the file as a zip: that spares the interpreter the archive's directory at each start.
start() {
  set +f
  exec "$_dislock_python" -E -s -S -c 'import sys;file=open(sys.argv[1],"rb");file.seek(@OFFSET@);text=file.read(@LENGTH@);file.close();exec(text[:@GUARD@] if len(text)==@LENGTH@ else "sys.exit(\"dislock: %s is damaged: copy it anew\"%sys.argv[1])")' "$0" "$@"
}
# Only running it shows that an interpreter is broken, or that copy and arguments are too long for it.
again() {
  trap - EXIT
  if (forget; "$_dislock_python" -E -s -S -c '') >/dev/null 2>&1; then
    forget
  elif [ -n "${DISLOCK_PYTHON:-}" ]; then
    say "DISLOCK_PYTHON is $DISLOCK_PYTHON, which cannot be started"
  else
    find_running
  fi
  start "$@"
  exit 2
}
# A shell that is given a script's name may have found it on PATH.
[ -r "$0" ] || say "cannot find itself as $0: start it by its path"
# Where exec fails, bash goes on if asked to, and the others end. BASH_VERSION alone may be the caller's.
if [ -z "${BASH_VERSION:-}" ] || ! PATH=/ command shopt -s execfail 2>/dev/null; then trap 'again "$@"' EXIT; fi
start "$@"
again "$@"
}
