#compdef clew
# Tab completion of clew for zsh: commands, options, threads and checkpoints.
# For this shell: eval "$(clew completion zsh)". For all: clew completion zsh --install

_clew() {
    local line value
    local -a candidates
    for line in "${(@f)$(env _TYPER_COMPLETE_ARGS="${(j: :)words[1,CURRENT]}" _TYPER_COMPLETE_FISH_ACTION=get-args \
        _CLEW_COMPLETE=complete_fish "$words[1]" 2>/dev/null)}"; do
        [[ -z $line ]] && continue
        value=${${line%%$'\t'*}//:/\\:}
        [[ $line == *$'\t'* ]] && value+=":${line#*$'\t'}"
        candidates+=("$value")
    done
    if (( $#candidates )); then
        _describe clew candidates
    else
        _files
    fi
}

if [[ $funcstack[1] == _clew ]]; then
    _clew "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _clew clew
fi
