#!/bin/sh
# dislock: one file for every host. This shell part finds a Python and hands over to it; the rest of the file is a zip archive.
# DISLOCK_PYTHON names the interpreter; without it the newest python3.X on PATH that the archive supports is taken.
say() { echo "dislock: $1" >&2; exit 2; }

python=
# A version manager's shim is there whether or not its Python is, and takes ten times as long to start: the last resort.
find_python() {
  set -f
  for name in python3.15 python3.14 python3.13 python3.12 python3.11 python3.10; do
    IFS=:
    for folder in ${PATH-}; do
      case $folder in */shims) continue ;; /*) ;; *) continue ;; esac # never a program out of the working directory
      if [ -f "$folder/$name" ] && [ -x "$folder/$name" ]; then python=$folder/$name; break 2; fi
    done
  done
  unset IFS
  set +f
  [ -z "$python" ] || return
  for name in python3 python python3.15 python3.14 python3.13 python3.12 python3.11 python3.10; do
    python=$("$name" -c 'import sys; print(sys.executable if sys.version_info >= (3, 10) else "")' 2>/dev/null) && [ -n "$python" ] && return
  done
  say "no CPython 3.10 or newer on PATH (python3.10 to python3.15 were looked for); DISLOCK_PYTHON can name one"
}
if [ -n "${DISLOCK_PYTHON:-}" ]; then
  command -v -- "$DISLOCK_PYTHON" >/dev/null 2>&1 || say "DISLOCK_PYTHON is $DISLOCK_PYTHON, and there is no such program"
  python=$DISLOCK_PYTHON
else
  find_python
fi

# A shell changes what it exports (PWD, SHLVL, names that are none in its language), and the command must get the environment as it
# came. So it is passed on as the kernel has it, and the program puts it back.
part=0
if [ /proc/self -ef "/proc/$$" ]; then
  while bytes=$(PATH=${PATH-}:/usr/bin:/bin od -An -v -tx1 -j "$((part * 40000))" -N 40000 "/proc/$$/environ" 2>/dev/null) && [ -n "$bytes" ]; do
    export "DISLOCK_ENVIRON_$part=$bytes"
    part=$((part + 1))
    [ "${#bytes}" -ge 119999 ] || break
  done
fi

# Isolated: nothing of the caller's PYTHON variables, user site, site-packages, or working directory. The last is taken off the path by
# the program, because -I would keep Python 2 from saying that it is too old. The program is read out of this file, instead of running
# the file as a zip: that spares the interpreter the archive's directory at each start.
exec "$python" -E -s -S -c 'import sys;file=open(sys.argv[1],"rb");file.seek(@OFFSET@);exec(file.read(@LENGTH@))' "$0" "$@"
exit 2
