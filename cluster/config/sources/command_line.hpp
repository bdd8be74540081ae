#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "cluster/config/program_info.hpp"
#include "cluster/config/trainer_config.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// The command line of a child process: where it joins its parent, and under which name. Everything
/// else reaches it by message. The secret is never part of it: everybody on a machine can read a
/// process's arguments.
struct node_options {
  std::string join;  ///< "HOST:PORT" or "unix:PATH" of the parent.
  std::string name;  ///< "stage-1".
  cluster::transport transport = cluster::transport::automatic;
  cluster::network network = cluster::network::sealed;
  /// Where it listens itself over tcp: HOST, HOST:PORT or a network such as 10.0.0.0/8; empty: at
  /// the address from which it reaches the parent. See listen_address.
  std::string listen = "";
  bool verbose = false;
  int secret_descriptor = -1;  ///< Where its parent left it the cluster's secret; -1: nowhere.
  std::filesystem::path secret_file;  ///< Or the user, in a file; empty: nowhere.

  bool operator==(const node_options&) const = default;
};

/// The flags that make a child read back exactly `options`.
[[nodiscard]] std::vector<std::string> to_arguments(const node_options& options);

/// Text that was asked for (--help, --version): print it on stdout and exit with 0.
struct message_text {
  std::string text;

  bool operator==(const message_text&) const = default;
};

/// What a command line asks the program to do: train, serve as a node (--join was given), or print
/// a text.
using command = std::variant<trainer_config, node_options, message_text>;

/// All errors in the files that --config names, in --set and in the values of flags, one line each,
/// in that order and in the order of the files' lines. Values that do not fit each other are
/// reported as far as all of them could be read. Empty also if the flags themselves cannot be read,
/// and if a text was asked for: see read_command_line.
[[nodiscard]] std::vector<std::string> every_error(const program_info& program,
                                                   std::span<const char* const> arguments);

/// Reads flags (without the program's own name) and the files that --config names. Flags win over
/// --set, that over the files, a later file over one before it, and files over the defaults; paths
/// are relative to the working directory. Checks everything that can be known without the model and
/// the data, also that named files can be read or written; creates nothing. Errors: bad_config, one
/// line that begins with "FILE:LINE:COLUMN: table.key", "--set table.key" or "--flag" and names the
/// allowed values; also if two options of the program have one name or flag.
[[nodiscard]] result<command> read_command_line(const program_info& program,
                                                std::span<const char* const> arguments);

}  // namespace troupe::cluster
