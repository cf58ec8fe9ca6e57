#!/bin/sh
# Hosts for tests of static_hosts: host_tool.sh FOLDER VERB NAME [TAG [PROGRAM ...]]
#   start   begin PROGRAM (by default a long sleep) for host NAME; success when it runs already
#   stop    end it; success when it does not run
#   status  one JSON object: state, boot, and the tag that its start was given
#   show    what `systemctl show -p ActiveState -p InvocationID` prints
# FOLDER/calls has a line a call; a file FOLDER/fail-VERB-NAME makes that call fail with what is in the file, and
# FOLDER/hang-VERB-NAME makes it hang.
set -u
folder=$1 verb=$2 name=$3
shift 3
pid_file=$folder/$name.pid
echo "$verb $name ${1:-}" >> "$folder/calls"
if [ -e "$folder/hang-$verb-$name" ]; then
  echo $$ > "$folder/hanging"
  sleep 300
fi
if [ -e "$folder/fail-$verb-$name" ]; then
  cat "$folder/fail-$verb-$name" >&2
  exit 7
fi
# A process that has ended and that nobody has waited for runs no more.
runs() { [ -e "$pid_file" ] && grep -q '^State:.[^Z]' "/proc/$(cat "$pid_file")/status" 2>/dev/null; }
case $verb in
start)
  runs && exit 0
  echo "${1:-}" > "$folder/$name.tag"
  [ $# -eq 0 ] || shift
  [ $# -gt 0 ] || set -- sleep 300
  cat /proc/sys/kernel/random/uuid > "$folder/$name.boot"
  setsid "$@" </dev/null >>"$folder/$name.log" 2>&1 &
  echo $! > "$pid_file"
  ;;
stop)
  runs || exit 0
  kill -TERM "$(cat "$pid_file")" 2>/dev/null
  exit 0
  ;;
status)
  state=stopped
  ! runs || state=running
  printf '{"state": "%s", "boot": "%s", "tag": "%s"}\n' "$state" \
    "$(cat "$folder/$name.boot" 2>/dev/null)" "$(cat "$folder/$name.tag" 2>/dev/null)"
  ;;
show)
  state=inactive
  ! runs || state=active
  printf 'ActiveState=%s\nInvocationID=%s\n' "$state" "$(cat "$folder/$name.boot" 2>/dev/null)"
  ;;
esac
