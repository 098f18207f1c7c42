#!/usr/bin/env bash
# The 57 games after the protocol of the Cleanba paper, PPO and IMPALA, 50M steps: SEEDS="1 2 3" benchmark/ours/atari57.sh
cd "$(dirname "$0")/../.." || exit
games="Alien Amidar Assault Asterix Asteroids Atlantis BankHeist BattleZone BeamRider Berzerk Bowling Boxing Breakout
Centipede ChopperCommand CrazyClimber Defender DemonAttack DoubleDunk Enduro FishingDerby Freeway Frostbite Gopher
Gravitar Hero IceHockey Jamesbond Kangaroo Krull KungFuMaster MontezumaRevenge MsPacman NameThisGame Phoenix Pitfall
Pong PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest Skiing Solaris SpaceInvaders StarGunner Surround Tennis
TimePilot Tutankham UpNDown Venture VideoPinball WizardOfWor YarsRevenge Zaxxon"
ppo="--machado --network impala --num-envs 128 --total-timesteps 50000000"
exec "${PYTHON:-.venv/bin/python}" -m benchmark.sweep "$@" < <(for game in $games; do
    echo "ppo_atari_cleanba.py + without/core-9 --env-id $game-v5 $ppo"  # the paper does not clip the value
    echo "impala_atari_cleanba.py --env-id $game-v5 --machado"
done)
