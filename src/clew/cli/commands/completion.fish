# Tab completion of clew for fish: commands, options, threads and checkpoints.
# For this shell: clew completion fish | source. For all: clew completion fish --install

function __clew_candidates
    set -l line (commandline -cp | string collect)
    set -l found (env _TYPER_COMPLETE_ARGS="$line" _TYPER_COMPLETE_FISH_ACTION=get-args \
        _CLEW_COMPLETE=complete_fish clew 2>/dev/null)
    if test -n "$found"
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end

complete --command clew --no-files --arguments '(__clew_candidates)'
