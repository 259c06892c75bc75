# Runs a program and kills it, with every process it has started, when its parent is gone.
#
#   sh guard.sh ADDRESS_KIB PROGRAM ARGUMENT... < LIFELINE
#
# It needs a session of its own. LIFELINE is the reading end of a pipe that is never written to: it
# reaches its end when the parent closes the other end or dies. Without that, the processes that a
# compiler's driver starts would go on for minutes and hold gigabytes. None of them may use an
# address space of more than ADDRESS_KIB. It is no Python script, because a compiler often takes
# less time than Python takes to start.

ulimit -S -v "$1" 2> /dev/null # fails where the limit is lower already
shift
exec 3<&0 < /dev/null
{ read -r _ <&3; kill -KILL 0; } > /dev/null 2>&1 & # this process too
watch=$!
"$@" 3<&-
code=$?
kill "$watch"
if [ "$code" -gt 128 ]; then
  echo "error: it was ended by SIG$(kill -l "$((code - 128))")" >&2
fi
exit "$code"
