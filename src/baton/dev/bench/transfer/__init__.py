"""What a handoff moves, in numbers and pictures; the two processes that move it are in
`dev/cli/transfer/`."""
