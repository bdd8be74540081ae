#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/error.hpp"

// How a program is copied to a host that lacks it, without anything of ours there: the words of the
// POSIX shell that ssh runs, what they answer, and what follows from it. Files lie on the host in
// `$XDG_CACHE_HOME/troupe/pushed` (`~/.cache`), which only the user may enter, each in a folder
// that is named by its SHA-256, so that no other file can be meant; each is hashed again before it
// is used.

namespace troupe::cluster {

/// A file of ours that a host is to have.
struct pushed_file {
  std::filesystem::path path;  ///< Here; the host's own file at this path does, if it is the same.
  std::string name;
  std::string digest;  ///< SHA-256, in hexadecimal digits.
  std::uint64_t bytes = 0;

  bool operator==(const pushed_file&) const = default;
};

/// What is on a host of one file.
struct file_there {
  bool in_place = false;    ///< At its path here.
  bool is_whole = false;    ///< In the folder, and with its digest.
  std::uint64_t bytes = 0;  ///< Of it in the folder, where it is not whole.

  bool operator==(const file_there&) const = default;
};

/// What a host says when it is asked.
struct host_answer {
  std::string machine;  ///< "x86_64"
  std::string libc;     ///< "glibc 2.36"; "unknown" where there is no glibc.
  std::string missing;  ///< A command that is needed; empty: all are there.
  std::string refused;  ///< Why the folder cannot be used; empty: it can.
  std::string folder;
  std::uint64_t free_bytes = 0;
  std::map<std::string, file_there> files;  ///< By digest.

  bool operator==(const host_answer&) const = default;
};

/// A file to send from `offset` on: what is before it has arrived earlier.
struct upload {
  std::size_t file = 0;  ///< Its index.
  std::uint64_t offset = 0;

  bool operator==(const upload&) const = default;
};

/// Where a program that has been pushed is on a host.
struct pushed_place {
  std::filesystem::path program;
  std::string library_path;  ///< Folders with `:` between, for LD_LIBRARY_PATH; may be empty.

  bool operator==(const pushed_place&) const = default;
};

/// The line for a host's shell that asks what is there of some files.
[[nodiscard]] std::string question_line(const std::vector<pushed_file>& files);

/// What the shell printed; other lines, as a login shell prints them, are passed over. Errors:
/// bad_frame where it is no answer.
[[nodiscard]] result<host_answer> read_answer(const std::vector<std::string>& lines);

/// What is to be sent. `machine`, `libc`: of this host. Errors, in words for the user: bad_config
/// for another architecture or C library, io_failed for a folder that cannot be used, a command
/// that is missing or a disk without room.
[[nodiscard]] result<std::vector<upload>> uploads_of(const host_answer& there,
                                                     const std::vector<pushed_file>& files,
                                                     const std::string& machine,
                                                     const std::string& libc);

/// The line for a host's shell that takes a file's bytes from its standard input.
[[nodiscard]] std::string upload_line(const pushed_file& file, std::uint64_t offset,
                                      const std::string& folder);

/// Why the host did not keep a file, from what its shell wrote.
[[nodiscard]] std::string explain_upload(const pushed_file& file, const std::string& folder,
                                         const std::vector<std::string>& lines);

/// Where all is once what was to be sent has been. `files`: the program first, then libraries.
[[nodiscard]] pushed_place place_of(const host_answer& there,
                                    const std::vector<pushed_file>& files);

/// Whether glibc `there` is at least as new as `here` ("glibc 2.36").
[[nodiscard]] bool is_libc_enough(std::string_view there, std::string_view here);

}  // namespace troupe::cluster
