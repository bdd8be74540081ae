#pragma once

#include <cstdint>

/// What the NCCL of tests has besides NCCL's functions: devices and streams, which are host memory
/// and threads there. Looked up with dlsym, since each copy of the library has its own.
///
/// The environment of a process scripts what goes wrong in it:
/// - FAKE_NCCL_VERSION=21403: the version it says it has;
/// - FAKE_NCCL_SCRIPT="FUNCTION:N:WHAT;..": at the Nth call of that function (from 1)
///     die          the process is killed (SIGKILL); of an operation: once its first piece has
///     moved hang         the call does not return before fake_release stall        the operation
///     never ends on its stream, until the communicator is aborted stuck        the communicator
///     stays in progress, until it is aborted fail=N,TEXT  the call returns status N, and
///     ncclGetLastError TEXT async=N,TEXT the communicator's state becomes N
/// - FAKE_NCCL_LOG=FILE: gets a line for each process, of the settings that its first communicator
///     found, as fake_sockets gives it;
/// - FAKE_NCCL_WORLDS=FOLDER: where ranks meet, instead of /dev/shm;
/// - FAKE_NCCL_SEES_DEATHS=1: the death of a peer becomes ncclRemoteError, as over sockets; without
///     it the operation waits for ever, as over peer-to-peer memory.
namespace troupe::tests::fake_nccl {

/// A function of the table below.
#define TROUPE_FAKE_NCCL_CONTROLS(X)                                                             \
  X(enter_device, "fake_enter_device", void, (int device))                                       \
  X(make_stream, "fake_make_stream", void*, (int device))                                        \
  X(drop_stream, "fake_drop_stream", void, (void* stream))                                       \
  /* Queues host work, which stands for a kernel. */                                             \
  X(post, "fake_post", void, (void* stream, void (*work)(void*), void* argument))                \
  X(mark, "fake_mark", std::uint64_t, (void* stream))                                            \
  X(reached, "fake_reached", int, (void* stream, std::uint64_t mark))                            \
  X(wait_for, "fake_wait_for", void, (void* stream, void* other, std::uint64_t mark))            \
  /* For memory that the host cannot read: where operations find what an address means, and who  \
     is told, when an operation is called, which memory it will read and write on its stream. */ \
  X(see_memory, "fake_see_memory", void,                                                         \
    (void* (*translate)(void*),                                                                  \
     void (*used)(void* stream, const char* what, const void* from, const void* to)))            \
  /* Lets calls that hang return. */                                                             \
  X(release, "fake_release", void, ())                                                           \
  /* What a program did that NCCL forbids, one line each; empty: nothing. */                     \
  X(wrong_uses, "fake_wrong_uses", const char*, ())                                              \
  X(calls_of, "fake_calls_of", int, (const char* function))                                      \
  /* The settings of sockets that this process's first communicator found; empty: had none. */   \
  X(sockets, "fake_sockets", const char*, ())

}  // namespace troupe::tests::fake_nccl
