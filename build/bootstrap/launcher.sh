#!/bin/sh
# dislock: one file for every host. This shell part finds a Python and hands over; the rest of the file is a zip archive.
# DISLOCK_PYTHON names the interpreter; without it the newest python3.X on PATH that the archive supports is taken.
say() { echo "dislock: $1" >&2; exit 2; }
older='import sys; sys.exit(sys.version_info < (3, 10))'
python=
if [ -n "${DISLOCK_PYTHON:-}" ]; then
  command -v -- "$DISLOCK_PYTHON" >/dev/null 2>&1 || say "DISLOCK_PYTHON is $DISLOCK_PYTHON, and there is no such program"
  "$DISLOCK_PYTHON" -c "$older" 2>/dev/null || say "DISLOCK_PYTHON is $DISLOCK_PYTHON, and that is no CPython 3.10 or newer"
  python=$DISLOCK_PYTHON
else
  set -f
  for name in python3.15 python3.14 python3.13 python3.12 python3.11 python3.10 python3 python; do
    IFS=:
    for folder in ${PATH-}; do
      # Never a program out of the working directory.
      case $folder in /*) ;; *) continue ;; esac
      [ -f "$folder/$name" ] && [ -x "$folder/$name" ] || continue
      # A version manager's shim is there whether or not its Python is; python3 and python can be anything.
      case $folder/$name in */shims/* | */python3 | */python) "$folder/$name" -c "$older" >/dev/null 2>&1 || continue ;; esac
      python=$folder/$name
      break 2
    done
  done
  unset IFS
  set +f
  [ -n "$python" ] || say "no CPython 3.10 or newer on PATH (python3.10 to python3.15 were looked for); DISLOCK_PYTHON can name one"
fi
# A shell changes what it exports (PWD, SHLVL, names that are none in its language). The command must get the environment as it
# came, so that is passed on as the kernel has it, and a Python can put it back.
part=0
if [ /proc/self -ef "/proc/$$" ]; then
  while bytes=$(PATH=${PATH-}:/usr/bin:/bin od -An -v -tx1 -j "$((part * 40000))" -N 40000 "/proc/$$/environ" 2>/dev/null) && [ -n "$bytes" ]; do
    export "DISLOCK_ENVIRON_$part=$bytes"
    part=$((part + 1))
    [ "${#bytes}" -ge 119999 ] || break
  done
fi
# -I and -S: nothing of the caller's PYTHON variables, working directory, user site or site-packages. The program is read out of this
# file, not run as a zip: that spares the interpreter the archive's directory at each start.
exec "$python" -I -S -c 'import sys; del sys.argv[0]; file = open(sys.argv[0], "rb"); file.seek(@OFFSET@); exec(compile(file.read(@LENGTH@), "dislock.pyz/start.py", "exec"))' "$0" "$@"
exit 2
