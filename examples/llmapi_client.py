"""Ask a served bundle with nothing but tritonclient, by the names of TensorRT-LLM's llmapi model: python llmapi_client.py PROMPT [URL]"""

import queue
import sys

import numpy as np
import tritonclient.grpc as triton

prompt, url = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1:8001"
values = {
    "text_input": prompt.encode(),
    "streaming": True,
    "sampling_param_max_tokens": np.int32(64),
    "sampling_param_temperature": np.float32(0),
}
inputs = []
for name, value in values.items():
    array = np.array([value], dtype=object if isinstance(value, bytes) else None)
    inputs.append(triton.InferInput(name, [1], triton.np_to_triton_dtype(array.dtype)))
    inputs[-1].set_data_from_numpy(array)
answers: queue.Queue = queue.Queue()
with triton.InferenceServerClient(url) as client:
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("specbuild", inputs, enable_empty_final_response=True)
    final = False
    while not final:
        result, error = answers.get()
        if error is not None:
            sys.exit(str(error))
        print(result.as_numpy("text_output")[0].decode(), end="", flush=True)
        final = result.get_response().parameters["triton_final_response"].bool_param
