# Connects a guest's console to one of the host's ports while the guest lives.
# Arguments: the domain's id, the port's number.
exec 3<>"/dev/vport0p$2"
until tty=$(xenstore-read "/local/domain/$1/console/tty" 2>/dev/null) && [ -n "$tty" ]; do sleep 0.05; done
cat <&3 >"$tty" &
cat "$tty" >&3
kill $!
