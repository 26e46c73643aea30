# busybox's shell would take its own.
alias ip=/usr/bin/ip ping=/usr/bin/ping
