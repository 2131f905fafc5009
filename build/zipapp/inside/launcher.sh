#!/bin/sh
{ # dislock: one file for every host. This shell part finds a Python and hands over to it; the rest of the file is a zip archive.
# DISLOCK_PYTHON names the interpreter; without it the newest python3.X on PATH that the archive supports is used.
# In braces, because a shell would run the first half of an incomplete file, and report a success.
say() { printf 'dislock: %s\n' "$1" >&2; exit 2; }

# Never a program in the working directory, which is what an empty or a relative part of PATH means.
# All variables begin with _dislock_: a variable of the caller that is exported would reach the command with its new value.
IFS=:
set -f
_dislock_absolute=
for _dislock_folder in ${PATH-}; do
  case $_dislock_folder in /*) _dislock_absolute=$_dislock_absolute$_dislock_folder: ;; esac
done

# look_for NAME PATTERN: the first such program on PATH, except in a folder that matches PATTERN.
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
# A version manager's shim exists even without its Python, and takes ten times as long to start, so it is the last choice.
find_python() {
  for _dislock_name in $_dislock_names; do
    look_for "$_dislock_name" '*/shims' && return
  done
  find_running
}
# find_running: the first Python that says it is suitable; one without natives (free-threaded) only if there is no other.
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
  # The program has found that its Python is not suitable. The copy of the environment exists already.
  find_running
elif [ -z "${DISLOCK_PYTHON:-}" ]; then
  find_python
else
  case $DISLOCK_PYTHON in */*) _dislock_python=$DISLOCK_PYTHON ;; *) look_for "$DISLOCK_PYTHON" '' ;; esac
  [ -f "$_dislock_python" ] && [ -x "$_dislock_python" ] || say "DISLOCK_PYTHON is $DISLOCK_PYTHON, and there is no such program"
fi

# A shell changes what it exports (PWD, SHLVL, names that are not valid in the shell), but the command must get the original
# environment. So a copy of it, as the kernel has it, is passed on, and the program restores it. The copy is three times as long, and
# the size of arguments and environment is limited: a larger environment is not copied.
_dislock_part=0
forget() { while [ "$_dislock_part" -gt 0 ]; do _dislock_part=$((_dislock_part - 1)); unset "DISLOCK_ENVIRON_$_dislock_part"; done; }
# An empty environment is passed on too, but not if od has printed nothing for another reason.
nothing() {
  [ "$_dislock_part" -eq 0 ] || return
  read -r _dislock_bytes <"/proc/$$/environ" || [ -n "$_dislock_bytes" ] || { export DISLOCK_ENVIRON_0=; _dislock_part=1; }
}
if [ -z "${_dislock_lacks:-}" ]; then
if [ /proc/self -ef "/proc/$$" ]; then
  while :; do
    # With `command`, because a function of the caller may have that name.
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

# Isolated: no PYTHON variables of the caller, no user site, no site-packages, no working directory. The program takes the last one off
# the path, because with -I Python 2 could not report that it is too old. The program is read from this file, and the file is not run
# as a zip, so that the interpreter does not read the archive's directory at each start.
start() {
  set +f
  exec "$_dislock_python" -E -s -S -c 'import sys;file=open(sys.argv[1],"rb");file.seek(@OFFSET@);text=file.read(@LENGTH@);file.close();exec(text[:@GUARD@] if len(text)==@LENGTH@ else "sys.exit(\"dislock: %s is damaged: copy it anew\"%sys.argv[1])")' "$0" "$@"
}
# Only a start shows that an interpreter is broken, or that the copy and the arguments are too long.
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
# A shell that gets a script's name without a path may have found it on PATH.
[ -r "$0" ] || say "cannot find itself as $0: start it by its path"
# If exec fails, bash continues if execfail is set, and other shells end. BASH_VERSION may come from the caller, so it is not enough.
if [ -z "${BASH_VERSION:-}" ] || ! PATH=/ command shopt -s execfail 2>/dev/null; then trap 'again "$@"' EXIT; fi
start "$@"
again "$@"
}
