#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/collective/nccl/abi.hpp"
#include "messages/base/error.hpp"

namespace troupe::engine::nccl {

/// Each function of NCCL that we call: our name, NCCL's name, what it returns and takes.
#define TROUPE_NCCL_FUNCTIONS(X)                                                                  \
  X(get_version, "ncclGetVersion", status, (int*))                                                \
  X(get_unique_id, "ncclGetUniqueId", status, (unique_id*))                                       \
  X(init_rank, "ncclCommInitRankConfig", status,                                                  \
    (communicator_handle**, int ranks, unique_id, int rank, configuration*))                      \
  X(async_error, "ncclCommGetAsyncError", status, (communicator_handle*, status*))                \
  X(finalize, "ncclCommFinalize", status, (communicator_handle*))                                 \
  X(destroy, "ncclCommDestroy", status, (communicator_handle*))                                   \
  X(abort, "ncclCommAbort", status, (communicator_handle*))                                       \
  X(all_reduce, "ncclAllReduce", status,                                                          \
    (const void*, void*, std::size_t, data_type, reduction, communicator_handle*, stream_handle)) \
  X(reduce_scatter, "ncclReduceScatter", status,                                                  \
    (const void*, void*, std::size_t, data_type, reduction, communicator_handle*, stream_handle)) \
  X(all_gather, "ncclAllGather", status,                                                          \
    (const void*, void*, std::size_t, data_type, communicator_handle*, stream_handle))            \
  X(broadcast, "ncclBroadcast", status,                                                           \
    (const void*, void*, std::size_t, data_type, int root, communicator_handle*, stream_handle))  \
  X(send, "ncclSend", status,                                                                     \
    (const void*, std::size_t, data_type, int peer, communicator_handle*, stream_handle))         \
  X(receive, "ncclRecv", status,                                                                  \
    (void*, std::size_t, data_type, int peer, communicator_handle*, stream_handle))               \
  X(group_start, "ncclGroupStart", status, ())                                                    \
  X(group_end, "ncclGroupEnd", status, ())                                                        \
  X(error_string, "ncclGetErrorString", const char*, (status))                                    \
  X(last_error, "ncclGetLastError", const char*, (communicator_handle*))

/// NCCL as it was found at run time. Never unloaded: NCCL has threads of its own.
struct api {
#define TROUPE_NCCL_MEMBER(name, symbol, returns, parameters) returns(*name) parameters = nullptr;
  TROUPE_NCCL_FUNCTIONS(TROUPE_NCCL_MEMBER)
#undef TROUPE_NCCL_MEMBER
  int version = 0;   ///< As `version_code` writes it.
  std::string path;  ///< Where it was found, or the name that the loader was asked for.
};

/// Where NCCL is looked for, in this order. The first place that has something decides: what is
/// there and cannot be loaded is an error, and nothing else is taken in its stead.
struct search {
  std::filesystem::path named = {};  ///< The setting: the library, or its folder. Empty: not set.
  std::string setting = "--nccl";    ///< What the user calls that setting.
  /// Where pip installs nvidia-nccl: folders called site-packages.
  std::vector<std::filesystem::path> site_packages = {};
  const char* loader_name = "libnccl.so.2";  ///< What the system's loader is asked for at last.
};

/// The site-packages that the LibTorch of this process is in; empty where it is in none.
[[nodiscard]] std::vector<std::filesystem::path> site_packages_of_torch();

/// Loads NCCL and checks its version, which opens no socket. Errors: transport_missing, naming the
/// place, what is wrong (missing, half installed, without one of the functions, too old) and what
/// to do.
[[nodiscard]] result<std::shared_ptr<const api>> load(const search& places);

/// "2.28.9"
[[nodiscard]] std::string version_text(int code);

}  // namespace troupe::engine::nccl
