# Completion for tcgemm-server and tcgemm-client. What there is to complete is asked of --help, so this
# knows every flag of the version that is installed.
_tcgemm() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} binary=$1
  local -a words=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
  COMPREPLY=()

  # --flag=value comes as three words.
  if [[ $word == = ]]; then
    word=
  elif [[ $previous == = ]]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi

  local help command='' candidate
  help=$("$binary" --help 2>/dev/null) || return 0
  local commands
  commands=$(awk '/^Subcommands:/ {on = 1; next} /^[^ ]/ || /^$/ {on = 0} on {print $1}' <<<"$help")
  for candidate in "${words[@]}"; do
    if grep -qxF -e "$candidate" <<<"$commands"; then
      command=$candidate
      help+=$'\n'$("$binary" "$command" --help 2>/dev/null)
      break
    fi
  done

  # Values of the flag before: its choices, as in "--output TEXT:{bf16,fp32}=bf16"; else files.
  if [[ $previous == -* ]]; then
    local line choices
    line=$(grep -E -m 1 -e "^ +(-[a-z],)?$previous( |$)" <<<"$help")
    choices=$(sed -nE 's/.*\{([^}]*)\}.*/\1/p' <<<"${line%%  [a-z]*}")
    if [[ -n $choices ]]; then
      mapfile -t COMPREPLY < <(compgen -W "${choices//,/ }" -- "$word")
      return 0
    elif [[ $line =~ $previous\ +[A-Z]+[:=\ ] || $line =~ $previous\ +[A-Z]+$ \
        || $previous == --config ]]; then
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return 0
    fi
  fi

  if [[ $word == -* ]]; then
    local flags
    flags=$(grep -oE -e '^ +(-[a-z],)?--?[a-z][a-z0-9-]*' <<<"$help" | tr -s ' ,' '\n')
    mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$word" | sort -u)
  elif [[ -n $commands && -z $command ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$word")
  elif [[ -n $command ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -o filenames -F _tcgemm tcgemm-server tcgemm-client
