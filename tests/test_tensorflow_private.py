"""Each private name of this library that kbatch uses is still there and does what kbatch needs."""
