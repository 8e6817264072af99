"""What every part uses and no part of the mathematics: arrays, files, the state of the process, parallel work."""
