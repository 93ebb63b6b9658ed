"""What starts scripts: torchrun, horovodrun or plain Python, on one host or several."""
