# docker build -t baton:0.1.0 .
#
# PyTorch for CPUs. Runs as any user, with a read-only root file system: what is written goes to /cache
# (models, kernels) and /tmp.
FROM python:3.12-slim AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheel .

FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt /tmp/constraints.txt
COPY --from=wheel /wheel /tmp/wheel
# The kernels are compiled for the machine that builds the image; another one compiles its own into /cache.
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" torch==2.13.0 \
 && pip install --no-cache-dir -c /tmp/constraints.txt /tmp/wheel/*.whl \
 && python -m baton.cli.kernels \
 && rm -r /tmp/wheel /tmp/constraints.txt \
 && mkdir -m 1777 /cache
ENV HOME=/cache
USER 10001:10001
VOLUME /cache
EXPOSE 8000
ENTRYPOINT ["baton"]
CMD ["serve", "--host", "0.0.0.0"]
