#!/bin/bash
#PBS -S /bin/bash
#PBS -N {{job_name}}
#PBS -l select=1:ncpus={{cpus}}{{memory}}
#PBS -l place={{place}}
#PBS -l walltime={{time}}
#PBS -q {{partition}}
#PBS -A {{account}}
#PBS -J {{array}}
#PBS -j oe
#PBS -o {{log}}
#PBS -r {{rerun}}
#PBS {{directive}}

cd "$PBS_O_WORKDIR" || exit
# PBS sets it to ncpus, which is right for one process only. What you export below is kept.
unset OMP_NUM_THREADS KMP_HW_SUBSET GOMP_CPU_AFFINITY

module load {{module}} || exit
source {{venv}}/bin/activate || exit
{{setup}}

# What each task runs: it finds its CPUs in its affinity mask and places itself on them.
task() {
    # Its part of the prompts, one of {{shards}}, and a file of results of its own.
    shard=$(({{shard}}))
    exec {{command}}
}

echo "job $PBS_JOBID on $(hostname)"
# PBS signals this shell with its tasks, and kills them when it has ended: it waits for them.
trap : TERM
{{run}} "$(declare -f task); task" </dev/null
exit $?
