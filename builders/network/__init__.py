"""Networks: a description and its weights in, one standard ONNX graph out."""
