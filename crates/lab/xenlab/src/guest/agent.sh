# Runs the scripts that arrive on standard input and answers on standard output. The protocol is in src/host/frame.rs.
# Several scripts may run at once. Only one process answers, so that answers do not mix.
jobs=/run/agent
mkdir -p "$jobs"
mkfifo "$jobs/ended"
# Opened for reading and writing, so that it stays open while no script runs.
exec 5<>"$jobs/ended"
[ -t 0 ] && stty raw -echo
cd /lab || exit

run() { # id: a script in a new session, so that it can be killed with its children
    # With its full path: busybox's setsid would run busybox's sh.
    setsid /bin/sh "$jobs/$1.sh" <"/dev/null" >"$jobs/$1.out" 2>&1 5>&- &
    echo $! >"$jobs/$1.pid"
    wait $!
    echo "$1 $?" >&5
}

answer() { # id status
    # The size is fixed first: background processes may still print.
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
