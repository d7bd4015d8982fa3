# vlane-fg: rings the daemon's bell before each command and each prompt. eval "$(vlane-fg hook bash)"
#
# To ring is to open a file for reading. Nothing is started for it, it never waits, and without a daemon it does nothing.
# Before a command: PS0 (bash 4.4), so that no DEBUG trap is touched. Bash 5.2 and later expands $(<file) by itself, without a process.
if [[ $- == *i* && -z ${__vlane_fg_dirs+x} ]]; then
    __vlane_fg_dirs=@DIRS@
    # The bells that are there: one or two files.
    __vlane_fg_bell1='' __vlane_fg_bell2=''

    # Rings, and finds the bells for PS0. Always succeeds: a trap on ERR, and set -e, must not notice it.
    __vlane_fg_prompt() {
        __vlane_fg_bell1='' __vlane_fg_bell2=''
        if [[ -f ${__vlane_fg_dirs[0]}/bell && -r ${__vlane_fg_dirs[0]}/bell ]]; then
            __vlane_fg_bell1=${__vlane_fg_dirs[0]}/bell
            if builtin true <"$__vlane_fg_bell1"; then builtin true; fi
        fi 2>/dev/null
        if [[ -n ${__vlane_fg_dirs[1]-} && -f ${__vlane_fg_dirs[1]}/bell && -r ${__vlane_fg_dirs[1]}/bell ]]; then
            __vlane_fg_bell2=${__vlane_fg_dirs[1]}/bell
            if builtin true <"$__vlane_fg_bell2"; then builtin true; fi
        fi 2>/dev/null
        # $(<file) ends such a shell if the file has gone since.
        if [[ $- == *e* ]]; then __vlane_fg_bell1='' __vlane_fg_bell2=''; fi
        return 0
    }

    # A variable that cannot be changed is left as it is: that half of the hook is missing then, and looking does its work.
    __vlane_fg_may() { if [[ $(builtin declare -p "$1" 2>/dev/null) == "declare -"*([!\ ])r* ]]; then return 1; fi; }
    if __vlane_fg_may PROMPT_COMMAND; then
        if ((BASH_VERSINFO[0] > 5 || (BASH_VERSINFO[0] == 5 && BASH_VERSINFO[1] >= 1))); then
            # Each element of the array sees the last command's status. The first one: the user's take their time.
            PROMPT_COMMAND=(__vlane_fg_prompt ${PROMPT_COMMAND[@]+"${PROMPT_COMMAND[@]}"})
        else
            # If it is exported, a shell that is started in this one has it without the function.
            PROMPT_COMMAND=${PROMPT_COMMAND-}${PROMPT_COMMAND:+$'\n'}'[[ -z ${__vlane_fg_dirs+x} ]] || __vlane_fg_prompt'
        fi
    fi
    if __vlane_fg_may PS0 && shopt -q promptvars; then
        PS0=${PS0-}'${__vlane_fg_bell1:+$(<"$__vlane_fg_bell1")}${__vlane_fg_bell2:+$(<"$__vlane_fg_bell2")}'
    fi
    unset -f __vlane_fg_may
fi
