"""tcexport: ship a PyTorch model as one file that runs without PyTorch."""
