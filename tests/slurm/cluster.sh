#!/bin/bash
# cluster.sh FOLDER COMMAND...   runs a command beside a Slurm of its own: two nodes of two cores.
# It has its own network, so only loopback, its own host name, and its own processes, which end with
# the command.
set -eu
folder=$1
shift
if [ -z "${IN_CLUSTER:-}" ]; then
    user_space=()
    [ "$(id -u)" = 0 ] || user_space=(--user --map-current-user --keep-caps)
    IN_CLUSTER=1 exec unshare "${user_space[@]}" --net --uts --pid --fork --kill-child --mount-proc "$0" "$folder" "$@"
fi

mkdir -p "$folder"/{state,node1,node2,munge}
ip link set lo up
ip addr add 10.99.0.1/32 dev lo # getaddrinfo takes no notice of 127.0.0.1 where there is nothing else
host=loopback
hostname "$host"
echo "127.0.0.1 localhost $host" >"$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts
user=$(id -un)
chmod 711 "$folder/munge"
(umask 077 && head -c 1024 /dev/urandom >"$folder/munge/key")
socket=$folder/munge/socket
munged --foreground --force --key-file="$folder/munge/key" --socket="$socket" \
    --pid-file="$folder/munge/pid" --log-file="$folder/munged.log" --seed-file="$folder/munge/seed" \
    </dev/null >"$folder/munged.out" 2>&1 &

cat >"$folder/slurm.conf" <<CONF
ClusterName=loopback
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=2
NodeName=node1 NodeHostname=$host NodeAddr=127.0.0.1 Port=17001 CoresPerSocket=2 RealMemory=4000
NodeName=node2 NodeHostname=$host NodeAddr=127.0.0.1 Port=17002 CoresPerSocket=2 RealMemory=4000
PartitionName=test Nodes=ALL Default=YES MaxTime=30 State=UP
CONF
printf 'Constrain%s=no\n' Cores Devices RAMSpace >"$folder/cgroup.conf"

export SLURM_CONF=$folder/slurm.conf
until [ -S "$socket" ]; do sleep 0.05; done
slurmctld -D -i </dev/null >"$folder/slurmctld.out" 2>&1 &
slurmd -D -N node1 </dev/null >"$folder/slurmd.node1.out" 2>&1 &
slurmd -D -N node2 </dev/null >"$folder/slurmd.node2.out" 2>&1 &
for _ in $(seq 240); do
    [ "$(timeout 2 sinfo -h -N -t idle 2>/dev/null | wc -l)" = 2 ] && break
    sleep 0.25
done
"$@"
