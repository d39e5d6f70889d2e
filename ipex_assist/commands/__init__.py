"""The subcommands of `ipex-assist`: options in, exit code out."""
