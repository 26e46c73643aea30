# Runs what comes in on standard input and answers on standard output, in lines as src/host/frame.rs has them.
# Several commands may run at once; only one process answers, so that answers do not mix.
jobs=/run/agent
mkdir -p "$jobs"
mkfifo "$jobs/ended"
# For reading and writing: it stays open while no command runs.
exec 5<>"$jobs/ended"
[ -t 0 ] && stty raw -echo
cd /lab || exit

run() { # id: a command in a session of its own, that can be stopped as a whole
    # With its path: busybox's setsid would take busybox's own sh.
    setsid /bin/sh "$jobs/$1.sh" <"/dev/null" >"$jobs/$1.out" 2>&1 5>&- &
    echo $! >"$jobs/$1.pid"
    wait $!
    echo "$1 $?" >&5
}

answer() { # id status
    # What it left behind may still print.
    size=$(stat -c %s "$jobs/$1.out")
    printf '\n~end %s %s %s ' "$1" "$2" "$size"
    head -c "$size" "$jobs/$1.out" | base64 -w 0
    printf '\n'
    rm -f "$jobs/$1".*
}

read -r up _ </proc/uptime
printf '\n~up %s\n' "$up"
while read -r id status; do answer "$id" "$status"; done <&5 &
answering=$!
while read -r word id script; do
    case $word in
    "~run")
        echo "$script" | base64 -d >"$jobs/$id.sh"
        run "$id" &
        ;;
    "~stop")
        [ -f "$jobs/$id.pid" ] && kill -9 "-$(cat "$jobs/$id.pid")"
        ;;
    esac
done
kill "$answering"
