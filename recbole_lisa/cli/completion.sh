# Completion of recbole-lisa for bash, and for zsh by bashcompinit. Where no word fits, the shell completes names of files.
_recbole_lisa() {
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" prefix="" words=""
    # bash splits `--model=LI` at the `=`, zsh does not.
    case "$word" in
        =) word="" ;;
        --*=*) before="${word%%=*}" prefix="${word%%=*}=" word="${word#*=}" ;;
        *) [ "$before" = "=" ] && before="${COMP_WORDS[COMP_CWORD-2]}" ;;
    esac
    case "$before" in
        # values
        *) case "$word" in -*) case "${COMP_WORDS[1]}" in
        # options
        esac ;; esac ;;
    esac
    [ "$COMP_CWORD" = 1 ] && words="$words # commands"
    COMPREPLY=($(compgen -P "$prefix" -W "$words" -- "$word"))
}
complete -o default -F _recbole_lisa recbole-lisa
