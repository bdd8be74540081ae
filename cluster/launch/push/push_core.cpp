#include "cluster/launch/push/push_core.hpp"

#include <charconv>
#include <optional>
#include <utility>

#include "messages/base/printable.hpp"

namespace troupe::cluster {
namespace {

constexpr std::string_view mark = "troupe push: ";  // before each line of an answer

constexpr std::string_view question = R"sh(
umask 077
say() { echo "troupe push: $*"; }
sum() { [ -f "$1" ] && sha256sum < "$1" 2>/dev/null | cut -c1-64; }
say "machine $(uname -m)"
say "libc $(getconf GNU_LIBC_VERSION 2>/dev/null || echo unknown)"
for each in sha256sum flock cut df wc; do
  command -v $each > /dev/null 2>&1 || { say "missing $each"; exit 0; }
done
folder="${XDG_CACHE_HOME:-$HOME/.cache}/troupe/pushed"
why=$(mkdir -p "$folder" 2>&1 && chmod 700 "$folder" 2>&1 &&
  mkdir -p "$folder/try" 2>&1 && rmdir "$folder/try" 2>&1) ||
  { say "refused $(echo $why)"; say "folder $folder"; exit 0; }
[ -O "$folder" ] && [ ! -L "$folder" ] ||
  { say "refused it belongs to somebody else"; say "folder $folder"; exit 0; }
say "folder $folder"
say "free $(df -Pk "$folder" | tail -n 1 | { read a b c d e; echo $d; })"
while [ $# -gt 1 ]; do
  digest=${1%%/*} name=${1#*/} path=$2
  shift 2
  if [ "$(sum "$path")" = "$digest" ]; then say "place $digest"; continue; fi
  cd "$folder" && mkdir -p "$digest" && cd "$digest" || continue
  if [ -f "$name" ]; then
    if [ "$(sum "$name")" = "$digest" ]; then say "whole $digest"; continue; fi
    rm -f "$name"
  fi
  if [ -f part ]; then say "part $digest $(wc -c < part)"; else say "part $digest 0"; fi
done
say "end"
)sh";

constexpr std::string_view taking = R"sh(
umask 077
folder=$1 digest=$2 name=$3 offset=$4 bytes=$5
sum() { [ -f "$1" ] && sha256sum < "$1" 2>/dev/null | cut -c1-64; }
cd "$folder/$digest" || exit 3
exec 9>> lock || exit 3
flock -w 600 9 || { echo "another launch has been sending it for ten minutes" >&2; exit 3; }
if [ -f "$name" ] && [ "$(sum "$name")" = "$digest" ]; then exit 0; fi
[ "$offset" -gt 0 ] || : > part || exit 3
[ "$(wc -c < part)" = "$offset" ] || { rm -f part; echo "another launch has sent a part of it" >&2; exit 3; }
cat >> part || { rm -f part; exit 3; }
[ "$(wc -c < part)" -ge "$bytes" ] || { echo "it was cut off, and what has arrived is kept" >&2; exit 3; }
[ "$(sum part)" = "$digest" ] || { rm -f part; echo "what arrived is not what was sent" >&2; exit 3; }
chmod 500 part && mv part "$name" || exit 3
)sh";

std::optional<std::uint64_t> number_in(std::string_view text) {
  std::uint64_t out = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), out);
  return status == std::errc() && stop != text.data() ? std::optional(out) : std::nullopt;
}

std::string mebi(std::uint64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

/// Takes what a line of the answer says after its mark.
void take(host_answer& into, std::string_view line, bool& ended) {
  const auto space = line.find(' ');
  const auto is = line.substr(0, space);
  const auto rest = space == std::string_view::npos ? "" : line.substr(space + 1);
  if (is == "machine") into.machine = rest;
  if (is == "libc") into.libc = rest;
  if (is == "missing") into.missing = rest;
  if (is == "refused") into.refused = rest.empty() ? "nobody says why" : rest;
  if (is == "folder") into.folder = rest;
  if (is == "free") into.free_bytes = number_in(rest).value_or(0) << 10;
  if (is == "place") into.files[std::string(rest)].in_place = true;
  if (is == "whole") into.files[std::string(rest)].is_whole = true;
  if (is == "part") {
    const auto gap = rest.find(' ');
    into.files[std::string(rest.substr(0, gap))].bytes =
        gap == std::string_view::npos ? 0 : number_in(rest.substr(gap + 1)).value_or(0);
  }
  ended = ended || is == "end" || is == "missing" || is == "refused";
}

std::string script_line(std::string_view script, const std::vector<std::string>& words) {
  std::string line = "exec /bin/sh -c " + shell_word(script) + " sh";
  for (const auto& word : words) line += " " + shell_word(word);
  return line;
}

/// The two numbers of "glibc 2.36".
std::optional<std::pair<std::uint64_t, std::uint64_t>> version_of(std::string_view libc) {
  if (!libc.starts_with("glibc ")) return std::nullopt;
  libc.remove_prefix(6);
  const auto dot = libc.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const auto major = number_in(libc.substr(0, dot));
  const auto minor = number_in(libc.substr(dot + 1));
  if (!major || !minor) return std::nullopt;
  return std::pair(*major, *minor);
}

}  // namespace

bool is_libc_enough(std::string_view there, std::string_view here) {
  const auto theirs = version_of(there);
  const auto ours = version_of(here);
  return theirs && ours && *theirs >= *ours;
}

std::string question_line(const std::vector<pushed_file>& files) {
  std::vector<std::string> words;
  for (const auto& file : files) {
    words.push_back(file.digest + "/" + file.name);
    words.push_back(file.path.string());
  }
  return script_line(question, words);
}

result<host_answer> read_answer(const std::vector<std::string>& lines) {
  host_answer out;
  bool ended = false;
  for (const auto& line : lines)
    if (const auto at = line.find(mark); at != std::string::npos)
      take(out, std::string_view(line).substr(at + mark.size()), ended);
  if (!ended) return fail(errc::bad_frame, "its shell did not say what is there");
  return out;
}

result<std::vector<upload>> uploads_of(const host_answer& there,
                                       const std::vector<pushed_file>& files,
                                       const std::string& machine, const std::string& libc) {
  if (there.machine != machine)
    return fail(errc::bad_config, "its processor is " + there.machine +
                                      ", and the program is for " + machine +
                                      "; build the program there, and name its path "
                                      "with `program` in its [[node]]");
  if (!is_libc_enough(there.libc, libc))
    return fail(errc::bad_config,
                "its C library is " + (there.libc == "unknown" ? "no glibc" : there.libc) +
                    ", and the program here uses " + libc +
                    "; build the program on the oldest of the hosts, or there, and name its path "
                    "with `program` in its [[node]]");
  if (!there.missing.empty())
    return fail(errc::io_failed,
                "there is no command " + there.missing + ", which --push needs; install it there");
  if (!there.refused.empty())
    return fail(errc::io_failed, "the folder for what is pushed, " + there.folder +
                                     ", cannot be used: " + there.refused +
                                     "; permit this user to write there, or set XDG_CACHE_HOME");
  std::vector<upload> out;
  std::uint64_t missing = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto found = there.files.find(files[i].digest);
    const auto state = found == there.files.end() ? file_there{} : found->second;
    if (state.in_place || state.is_whole) continue;
    const auto offset = state.bytes <= files[i].bytes ? state.bytes : 0;
    missing += files[i].bytes - offset;
    out.push_back({i, offset});
  }
  if (missing > there.free_bytes)
    return fail(errc::io_failed, there.folder + " has " + mebi(there.free_bytes) +
                                     " free, and what is to be pushed has " + mebi(missing) +
                                     "; make room on that disk, or set XDG_CACHE_HOME");
  return out;
}

std::string upload_line(const pushed_file& file, std::uint64_t offset, const std::string& folder) {
  return script_line(
      taking, {folder, file.digest, file.name, std::to_string(offset), std::to_string(file.bytes)});
}

std::string explain_upload(const pushed_file& file, const std::string& folder,
                           const std::vector<std::string>& lines) {
  const std::string begin = file.name + " could not be written in " + folder;
  const std::string said = lines.empty() ? "" : " (" + lines.back() + ")";
  for (const auto& line : lines)
    if (line.find("No space left") != std::string::npos ||
        line.find("quota exceeded") != std::string::npos)
      return begin + said + "; make room on that disk, or set XDG_CACHE_HOME";
  return begin + said + "; try again";
}

pushed_place place_of(const host_answer& there, const std::vector<pushed_file>& files) {
  pushed_place out;
  for (const auto& file : files) {
    const auto found = there.files.find(file.digest);
    const bool in_place = found != there.files.end() && found->second.in_place;
    const auto pushed = std::filesystem::path(there.folder) / file.digest;
    if (out.program.empty())
      out.program = in_place ? file.path : pushed / file.name;
    else
      out.library_path += (out.library_path.empty() ? "" : ":") +
                          (in_place ? file.path.parent_path() : pushed).string();
  }
  return out;
}

}  // namespace troupe::cluster
