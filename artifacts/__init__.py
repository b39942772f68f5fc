"""The file format: manifest, contract, container, weights, errors. Imports nothing above it."""
