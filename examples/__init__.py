"""Small programs that show how to use ledgerstream. `make demo` runs `examples.demo`."""
