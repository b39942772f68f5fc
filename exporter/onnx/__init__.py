"""ONNX files: read as a source, as a torch module of one line for each node; and written."""
