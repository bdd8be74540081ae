#pragma once

namespace troupe::cluster {

/// Whether a sanitizer watches this process.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool is_watched = true;
#else
inline constexpr bool is_watched = false;
#endif

/// When this process exits, what the program has registered is called (destructors of its static
/// objects, std::atexit), and what its shared libraries have is not: LibTorch would take its tables
/// of operators apart. All of it is called where a sanitizer watches, or LD_PRELOAD is set, for
/// these may have something to say as late as that.
void leave_libraries_at_exit();

/// What every program of ours does first in `main`, whoever started it:
/// - Standard streams that were closed are /dev/null, so that no other descriptor takes their
///   numbers and gets what is printed. (That is so before `main`, and before any library starts.)
/// - A write to a closed pipe, and one beyond the limit on file sizes, fails like any other
///   (SIGPIPE, SIGXFSZ), instead of ending the process.
/// - SIGHUP is as it was when the process was started, ignored under nohup, for UCX takes it.
/// - It leaves its libraries when it exits (see leave_libraries_at_exit).
void prepare_process();

/// Whether this process has opened files that are open now, beside the standard streams; those do
/// not count that were open when it was started.
[[nodiscard]] bool has_opened_files();

/// Those that are open now count as open when this process was started.
void accept_open_files();

/// Of a copy of a process: it counts as started now, with default signals, and leaves its libraries
/// when it exits (see leave_libraries_at_exit).
void begin_process_again();

/// From now on, until somebody handles the signal.
void ignore_signal(int number);

/// For a process that its trainer has started: whether and when the run ends is the trainer's to
/// decide, which may need it to save the weights. SIGINT and SIGHUP are ignored, SIGUSR1 and
/// SIGUSR2 (for the trainer, [checkpoint] on_signal), and SIGTERM unless the trainer itself has
/// sent it. The trainer's death still ends the process.
void leave_signals_to_parent();

}  // namespace troupe::cluster
