# kbatch inside the official TensorFlow GPU image, whose TensorFlow is kept.
# 2.17.0 is its last version that sees a GPU: later images bring cuDNN 8, and their TensorFlow needs 9
# (github.com/tensorflow/tensorflow/issues/81344).
#   docker build -f examples/docker/tensorflow.Dockerfile -t kbatch .
#   docker run --gpus all --user $(id -u):$(id -g) -v $PWD/out:/out kbatch cats-vs-dogs --out /out
ARG BASE=tensorflow/tensorflow:2.17.0-gpu
FROM ${BASE}
# nvidia-ml-py tells the card's load and free memory
RUN --mount=type=bind,target=/src \
    pip install --no-cache-dir 'tensorflow==2.17.0' /src nvidia-ml-py
ENTRYPOINT ["kbatch"]
