#include "cluster/config/checks.hpp"

#include <arpa/inet.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "cluster/config/near_miss.hpp"
#include "cluster/config/secret_file.hpp"

namespace troupe::cluster {
namespace {

namespace fs = std::filesystem;

const setting* given(const draft& whole, const std::string& name) {
  const auto found = whole.given.find(name);
  return found == whole.given.end() ? nullptr : &found->second;
}

// How an error about one of two options begins: a flag before the file, the file before a default.
std::string blame(const draft& whole, const std::string& first, const std::string& second) {
  const setting* a = given(whole, first);
  const setting* b = given(whole, second);
  const bool b_is_nearer =
      b != nullptr && (a == nullptr || (!a->file_line.empty() && b->file_line.empty()));
  if (b_is_nearer) return b->where() + ": ";
  return (a != nullptr ? a->where() : first) + ": ";
}

// "(--stages 3)", "(pipeline.stages = 3 in run.toml:4)", "(pipeline.stages = 3 by default)"
std::string source(const draft& whole, const std::string& name, const std::string& value) {
  const setting* found = given(whole, name);
  if (found != nullptr && found->file_line.empty())
    return " (" + std::string(found->entry->flag) + " " + value + ")";
  return " (" + name + " = " + value +
         (found != nullptr ? " in " + found->file_line : " by default") + ")";
}

std::string source(const draft& whole, const std::string& name, std::uint64_t value) {
  return source(whole, name, std::to_string(value));
}

result<void> check_cut(draft& whole) {
  pipeline_config& pipeline = whole.config.pipeline;
  if (pipeline.cut.empty()) return {};
  const std::string key =
      given(whole, "pipeline.cut") != nullptr ? "pipeline.cut" : "pipeline.partition";
  const std::size_t layers = pipeline.cut.size();
  if (given(whole, "pipeline.stages") == nullptr)
    pipeline.stages = static_cast<std::uint32_t>(layers + 1);
  if (pipeline.stages == layers + 1) return {};
  return fail(errc::bad_config,
              blame(whole, key, "pipeline.stages") + "a cut at " + std::to_string(layers) +
                  (layers == 1 ? " layer" : " layers") +
                  source(whole, key, join({pipeline.cut.begin(), pipeline.cut.end()})) + " makes " +
                  std::to_string(layers + 1) + " stages, not " + std::to_string(pipeline.stages) +
                  source(whole, "pipeline.stages", pipeline.stages) +
                  "; name one layer less than stages, or none to have them balanced");
}

result<void> check_memory(draft& whole) {
  const pipeline_config& pipeline = whole.config.pipeline;
  if (pipeline.memory_mib == 0 || pipeline.partition == partition::automatic) return {};
  return fail(errc::bad_config, given(whole, "pipeline.memory_mib")->where() +
                                    ": is kept to by partition = \"auto\" only (--partition auto)");
}

result<void> check_transformer(draft& whole) {
  const transformer_config& model = whole.config.transformer;
  if (model.width % model.heads == 0) return {};
  return fail(errc::bad_config,
              blame(whole, "transformer.heads", "transformer.width") + std::to_string(model.heads) +
                  " heads" + source(whole, "transformer.heads", std::to_string(model.heads)) +
                  " do not divide a width of " + std::to_string(model.width) +
                  source(whole, "transformer.width", std::to_string(model.width)));
}

result<void> check_micro_batches(draft& whole) {
  const auto samples = static_cast<std::uint64_t>(whole.config.train.batch_size);
  const std::uint64_t parts = whole.config.pipeline.micro_batches;
  if (parts <= samples) return {};
  return fail(errc::bad_config,
              blame(whole, "pipeline.micro_batches", "train.batch_size") + std::to_string(parts) +
                  " micro-batches" + source(whole, "pipeline.micro_batches", parts) +
                  " need as many samples, but a batch has " + std::to_string(samples) +
                  source(whole, "train.batch_size", samples));
}

result<void> check_link(draft& whole) {
  const transport kind = whole.config.link.transport;
  const placement where = whole.config.pipeline.stages_in;
  if (kind == transport::automatic) return {};
  if ((kind == transport::loopback) == (where == placement::threads)) return {};
  const std::string link(name_of(kind));
  const std::string stages(name_of(where));
  return fail(errc::bad_config,
              blame(whole, "link.transport", "pipeline.stages_in") + link +
                  source(whole, "link.transport", link) + " cannot connect stages in " + stages +
                  source(whole, "pipeline.stages_in", stages) + "; allowed there: " +
                  (where == placement::threads ? "auto, loopback" : "auto, tcp, shm"));
}

result<void> check_texts(draft& whole) {
  const trainer_config& config = whole.config;
  const auto refuse = [&whole](const std::string& name, const std::string& why) {
    return fail(errc::bad_config, given(whole, name)->where() + ": " + why);
  };
  if (config.model.name.empty()) return refuse("model.name", "is empty; name a model");
  if (config.data.source.empty()) return refuse("data.source", "is empty; name a data source");
  if (!is_address(config.link.listen))
    return refuse("link.listen",
                  '"' + config.link.listen +
                      "\" is not an address; allowed: HOST:PORT with a port from 0 to "
                      "65535 (0: any free one)");
  return {};
}

// Strangers could join a run that they reach, and their bytes would be decoded.
result<void> check_secret(draft& whole) {
  const link_config& link = whole.config.link;
  if (!link.secret_file.empty()) {
    return read_secret_file(link.secret_file).map([](const auto&) {}).map_error([&](error why) {
      why.text.insert(0, given(whole, "link.secret_file")->where() + ": ");
      return why;
    });
  }
  if (is_loopback(link.listen)) return {};
  return fail(errc::bad_config,
              given(whole, "link.listen")->where() + ": other machines reach " + link.listen +
                  ", so only who knows a secret may connect: name its file with --secret-file, or "
                  "listen at a loopback address");
}

// Why a file cannot be read; empty: it can.
std::string unreadable(const fs::path& file) {
  std::error_code error;
  if (fs::is_directory(file, error)) return "is a directory";
  return ::access(file.c_str(), R_OK) == 0 ? "" : std::strerror(errno);
}

// Why a file cannot be written, or created, there; empty: it can.
std::string unwritable(const fs::path& file, bool replaced_whole) {
  std::error_code error;
  if (fs::is_directory(file, error)) return "is a directory";
  if (!replaced_whole && fs::exists(file, error))
    return ::access(file.c_str(), W_OK) == 0 ? "" : std::strerror(errno);
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (!fs::exists(folder, error)) return "the directory " + folder.string() + " does not exist";
  if (!fs::is_directory(folder, error)) return folder.string() + " is not a directory";
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return "";
  return "the directory " + folder.string() + " cannot be written: " + std::strerror(errno);
}

result<void> check_files(draft& whole) {
  const auto refuse = [&whole](const std::string& name, const fs::path& file, const char* use,
                               const std::string& why) -> result<void> {
    if (file.empty() || why.empty()) return {};
    return fail(errc::bad_config, given(whole, name)->where() + ": " + file.string() +
                                      " cannot be " + use + ": " + why);
  };
  const trainer_config& c = whole.config;
  return refuse("model.init", c.model.init, "read", unreadable(c.model.init))
      .and_then([&] {
        return refuse("train.save", c.train.save, "written", unwritable(c.train.save, true));
      })
      .and_then([&] {
        return refuse("observe.json", c.observe.json, "written", unwritable(c.observe.json, false));
      });
}

}  // namespace

bool is_address(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const std::string host = text.substr(0, colon);
  const bool bracketed = host.front() == '[' && host.back() == ']' && host.size() > 2;
  if (!bracketed && host.find_first_of("[]: \t") != std::string::npos) return false;
  unsigned port = 0;
  const char* begin = text.data() + colon + 1;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(begin, end, port);
  return begin != end && stop == end && status == std::errc() && port <= 65535;
}

bool is_loopback(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  if (host.empty() || host == "localhost" || host == "[::1]") return true;
  in_addr four{};
  return ::inet_pton(AF_INET, host.c_str(), &four) == 1 && ntohl(four.s_addr) >> 24 == 127;
}

result<trainer_config> check_together(draft whole) {
  for (auto check : {check_cut, check_memory, check_transformer, check_micro_batches, check_link,
                     check_texts, check_secret, check_files})
    if (auto fine = check(whole); !fine) return tl::unexpected(fine.error());
  return whole.config;
}

}  // namespace troupe::cluster
