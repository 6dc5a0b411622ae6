# Tab completion of clew for bash: commands, options, threads and checkpoints.
# For this shell: eval "$(clew completion bash)". For all: clew completion bash --install

_clew_completion() {
    local line=$COMP_LINE word last before value
    local -a words=()
    # What bash took for words of their own, at : and =, belongs together where no blank stands between.
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ ${#words[@]} -eq 0 || $line == [[:blank:]]* ]]; then
            words+=("$word")
            line=${line#"${line%%[![:blank:]]*}"}
        else
            words[${#words[@]}-1]+=$word
        fi
        line=${line#"$word"}
    done
    word=${words[${#words[@]}-1]}
    # Of a candidate, bash wants what comes in the place of its own last word.
    last=${COMP_WORDS[COMP_CWORD]}
    [[ $last == [:=] ]] && last=
    before=${word%"$last"}
    before=${before#--*=}
    COMPREPLY=()
    while IFS= read -r value; do
        [[ -z $value ]] && continue
        value=${value#"$before"}
        [[ $word == [\"\']* ]] || printf -v value %q "$value"
        COMPREPLY+=("$value")
    done < <(env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) _CLEW_COMPLETE=complete_bash "$1" 2>/dev/null)
}

complete -o bashdefault -o default -F _clew_completion clew
