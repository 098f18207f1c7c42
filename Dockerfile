# docker build -t ppo .    docker run --gpus all -v "$PWD/runs:/ppo/runs" ppo ppo_atari.py --env-id PongNoFrameskip-v4
FROM python:3.11-slim-bookworm

# Qt draws Procgen, EGL draws MuJoCo, --compile needs a compiler
RUN apt-get update && apt-get install -y --no-install-recommends libqt5gui5 libegl1 g++ && rm -rf /var/lib/apt/lists/*

WORKDIR /ppo
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN pip install --no-cache-dir -c constraints.txt ".[all]"
COPY *.py ./
COPY checker ./checker
ENV MUJOCO_GL=egl
ENTRYPOINT ["python"]
