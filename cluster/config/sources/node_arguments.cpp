#include "cluster/config/sources/node_arguments.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/config/checks/host_checks.hpp"
#include "cluster/config/words.hpp"
#include "cluster/hosts/host_addresses.hpp"
#include "cluster/hosts/network_range.hpp"
#include "messages/link/meeting_place.hpp"

namespace troupe::cluster {
namespace {

/// The enumerator of a word behind a flag, if it is one of those that `allowed` names.
template <class Enumeration>
result<Enumeration> enumerator(const std::string& flag, const std::string& word,
                               const std::string& allowed) {
  const std::span<const std::string_view> words = words_of<Enumeration>;
  const auto found = std::find(words.begin(), words.end(), word);
  if (found == words.end() || (", " + allowed + ",").find(", " + word + ",") == std::string::npos)
    return fail(errc::bad_config, flag + ": unknown value \"" + word + "\"; allowed: " + allowed);
  return static_cast<Enumeration>(found - words.begin());
}

result<void> check_node(const node_options& node) {
  const auto outside = messages::meeting_place::parse(node.join).outside;
  const bool may_be_joined = is_address(outside) && !outside.ends_with(":0");
  if (!may_be_joined && !is_unix_socket(outside))
    return fail(errc::bad_config,
                "--join (ADDRESS of troupe join): \"" + node.join +
                    "\" is not an address at which a trainer listens; allowed: HOST:PORT with a "
                    "port from 1 to 65535, unix:PATH");
  if (kind_of(host_of(outside)) == address_kind::link_local)
    return fail(errc::bad_config,
                "--join (ADDRESS of troupe join): \"" + node.join +
                    "\" is a link-local address, which means nothing without an interface; have "
                    "the trainer listen at another one");
  if (!is_loopback(outside) && node.secret_file.empty() && node.secret_descriptor < 0)
    return fail(errc::bad_config, "--join: " + node.join +
                                      " is on another machine: name the file of the cluster's "
                                      "secret with --secret-file");
  const auto wrong = node.listen.find('/') == std::string::npos ? wrong_address(node.listen, {})
                                                                : wrong_network(node.listen);
  if (!wrong.empty())
    return fail(errc::bad_config, "--node-listen (--listen of troupe join): " + wrong);
  if (node.name.empty())
    return fail(errc::bad_config,
                "--node-name (--name of troupe join): is empty; name a stage, such as stage-0");
  return {};
}

}  // namespace

result<node_options> read_node_arguments(std::span<const char* const> arguments) {
  node_options out;
  std::string link = "auto";
  std::string network_word = "sealed";
  CLI::App app;
  app.add_option("--join", out.join)->required();
  app.add_option("--node-name", out.name)->required();
  app.add_option("--link", link);
  app.add_option("--network", network_word);
  app.add_option("--node-listen", out.listen);
  app.add_flag("--verbose", out.verbose);
  app.add_option("--secret-fd", out.secret_descriptor)->check(CLI::Range(3, 1 << 20));
  app.add_option("--secret-file", out.secret_file);
  try {
    std::vector<std::string> words(arguments.begin(), arguments.end());
    std::reverse(words.begin(), words.end());
    app.parse(words);
  } catch (const CLI::Error& wrong) {
    return fail(errc::bad_config,
                "--join: a stage process takes --join ADDRESS, --node-name NAME, "
                "--link KIND, --network KIND, --node-listen WHERE, --secret-file FILE and "
                "--verbose: " +
                    std::string(wrong.what()));
  }
  if (auto sound = check_node(out); !sound) return tl::unexpected(sound.error());
  const auto way = enumerator<transport>("--link", link, "auto, tcp, shm, mixed");
  if (!way) return tl::unexpected(way.error());
  const auto over = enumerator<network>("--network", network_word, "sealed, trusted");
  if (!over) return tl::unexpected(over.error());
  out.transport = *way;
  out.network = *over;
  return out;
}

std::vector<std::string> to_arguments(const node_options& options) {
  std::vector<std::string> out{"--join",     options.join, "--node-name",
                               options.name, "--link",     std::string(word_of(options.transport))};
  if (options.network == network::trusted) out.insert(out.end(), {"--network", "trusted"});
  if (!options.listen.empty()) out.insert(out.end(), {"--node-listen", options.listen});
  if (options.verbose) out.emplace_back("--verbose");
  if (options.secret_descriptor >= 0)
    out.insert(out.end(), {"--secret-fd", std::to_string(options.secret_descriptor)});
  if (!options.secret_file.empty())
    out.insert(out.end(), {"--secret-file", options.secret_file.string()});
  return out;
}

}  // namespace troupe::cluster
