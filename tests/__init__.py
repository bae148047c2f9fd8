"""The tests: a folder per room of the package, `support` with what they share, `tools` behind words of run.sh, `fuzzing`."""
