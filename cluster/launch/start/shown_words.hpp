#pragma once

namespace troupe::cluster {

/// Words in memory of this process, each with a zero behind it: the command line, directly after it
/// the environment.
struct words_in_memory {
  char* arguments = nullptr;
  char* environment = nullptr;
  char* end = nullptr;
};

/// Has the system show them for this process (ps, /proc/PID/cmdline), where it lets a process say
/// so; else it goes on to show what it did. They must stay there.
void show_words(const words_in_memory& words) noexcept;

/// The same for a command line of one word and no environment. It must stay there.
void show_only_word(const char* word) noexcept;

/// The process's name (/proc/PID/comm), as the system makes it of a program's path.
void show_name(const char* path) noexcept;

}  // namespace troupe::cluster
