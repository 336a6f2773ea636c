#!/bin/sh
# Process 1 of the agent's container. A container ends with its first process and takes the watchdog along; so this shell
# outlives an agent that is killed, the watchdog undoes the clocks at once, and a reset makes sure of it.
joulegate agent "$@" &
agent=$!
trap 'kill -TERM "$agent"' TERM INT
wait "$agent"
status=$?
while kill -0 "$agent" 2>/dev/null; do # a signal ended the first wait
    wait "$agent"
    status=$?
done
joulegate agent "$@" --reset
exit "$status"
