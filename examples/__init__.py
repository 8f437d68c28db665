"""Small programs that use ledgerstream as its users do. `make demo` runs `examples.demo`."""
