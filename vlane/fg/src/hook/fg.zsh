# vlane-fg: rings the daemon's bell before each command and each prompt. eval "$(vlane-fg hook zsh)"
#
# To ring is to open a file for reading. Nothing is started for it, it never waits, and without a daemon it does nothing.
if [[ -o interactive && -z ${__vlane_fg_dirs+x} ]]; then
    typeset -ga __vlane_fg_dirs precmd_functions preexec_functions
    __vlane_fg_dirs=@DIRS@

    # Always succeeds: a trap on ZERR, and set -e, must not notice it.
    __vlane_fg_ring() {
        emulate -L zsh
        local __vlane_fg_dir
        for __vlane_fg_dir in "${__vlane_fg_dirs[@]}"; do
            if [[ -f $__vlane_fg_dir/bell && -r $__vlane_fg_dir/bell ]]; then
                if builtin true <"$__vlane_fg_dir/bell"; then builtin true; fi
            fi 2>/dev/null
        done
        return 0
    }

    if [[ ${(t)precmd_functions} != *readonly* ]]; then precmd_functions+=(__vlane_fg_ring); fi
    if [[ ${(t)preexec_functions} != *readonly* ]]; then preexec_functions+=(__vlane_fg_ring); fi
fi
