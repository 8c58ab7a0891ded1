"""Cases of our own, in JSON, and the readable sources that they are made from."""
