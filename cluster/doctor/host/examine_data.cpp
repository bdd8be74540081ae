#include "cluster/doctor/host/examine_data.hpp"

#include <filesystem>
#include <string>
#include <system_error>

namespace troupe::cluster::doctor {
namespace {

/// Where relative paths begin, behind an error of a source that has one; empty: it has none.
std::string where_paths_begin(const std::string& source) {
  if (source.find(':') == std::string::npos || source.find(":/") != std::string::npos) return "";
  std::error_code unknown;
  const auto folder = std::filesystem::current_path(unknown);
  return unknown ? "" : " (its working folder is " + folder.string() + ")";
}

}  // namespace

host_facts examine_data(const requests::data& asked, const engine::data_registry& known) {
  host_facts out;
  out.data_source = asked.source;
  const auto opened = engine::open_dataset({.source = asked.source,
                                            .context = asked.context,
                                            .image_size = asked.image_size,
                                            .seed = asked.seed,
                                            .threads = asked.threads,
                                            .strict = asked.strict,
                                            .warn = {}},
                                           known);
  if (!opened) out.data_error = opened.error().text + where_paths_begin(asked.source);
  return out;
}

}  // namespace troupe::cluster::doctor
