"""What a handoff moves, in figures and pictures. The two processes that move it are in
`dev/cli/transfer/`."""
