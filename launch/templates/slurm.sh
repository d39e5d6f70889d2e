#!/bin/bash
#SBATCH --job-name={{job_name}}
#SBATCH --nodes={{nodes}}
#SBATCH --ntasks-per-node={{instances}}
#SBATCH --cpus-per-task={{cores}}
#SBATCH --threads-per-core={{threads_per_core}}
#SBATCH {{exclusive}}
#SBATCH --mem={{memory}}
#SBATCH --time={{time}}
#SBATCH --partition={{partition}}
#SBATCH --account={{account}}
#SBATCH --array={{array}}
#SBATCH --output={{log}}
#SBATCH --open-mode=append
#SBATCH --signal=TERM@{{grace}}
#SBATCH {{requeue}}
#SBATCH {{directive}}

# Of the shell that submitted the job; how many threads suit is seen where it runs.
unset OMP_NUM_THREADS KMP_HW_SUBSET GOMP_CPU_AFFINITY
module load {{module}} || exit
source {{venv}}/bin/activate || exit
{{setup}}

# What each task runs: it finds its CPUs in its affinity mask and places itself on them.
task() {
    # Its part of the prompts, one of {{shards}}, and a file of results of its own.
    [ "$SLURM_NTASKS" = {{sharing_tasks}} ] || { echo "made for {{sharing_tasks}} tasks, not $SLURM_NTASKS" >&2; exit 2; }
    shard=$(({{shard}}))
    exec {{command}}
}

echo "job {{self}} on $SLURM_JOB_NODELIST, start $((${SLURM_RESTART_COUNT:-0} + 1))"
# When time runs out Slurm tells the tasks alone; when the job is cancelled this shell as well, which waits for them.
cancelled=
trap 'cancelled=yes' TERM
# A task that fails does not end the others.
srun --export=ALL --kill-on-bad-exit=0 --wait=0 {{binding}} bash -c "$(declare -f task); task"
code=$?
# 143: ended by SIGTERM before it was done. Up to {{restarts}} times the job is started again, and goes on.
[ "$code" = 143 ] && [ -z "$cancelled" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt {{restarts}} ] && scontrol requeue "{{self}}"
exit "$code"
