#include "cluster/observe/json_lines.hpp"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::cluster {
namespace {

using json = nlohmann::ordered_json;

tl::unexpected<error> cannot_write(const std::filesystem::path& file) {
  return fail(errc::io_failed,
              file.string() + ": the JSON lines cannot be written: " + std::strerror(errno));
}

std::string line_of(const json& object) {
  return object.dump(-1, ' ', false, json::error_handler_t::replace) + '\n';
}

}  // namespace

result<json_lines> json_lines::open(const std::filesystem::path& file) {
  std::FILE* opened = std::fopen(file.c_str(), "we");
  if (opened == nullptr) return cannot_write(file);
  return json_lines(file, opened);
}

result<void> json_lines::write(const step_report& report) {
  json stages = json::array();
  for (const stage_report& stage : report.stages) {
    stages.push_back({{"name", stage.name},
                      {"busy_s", stage.busy_s},
                      {"idle_s", stage.idle_s},
                      {"peak_memory_bytes", stage.peak_memory_bytes},
                      {"peak_context_bytes", stage.peak_context_bytes}});
  }
  json object{{"step", report.step},
              {"loss", report.loss},
              {"seconds", report.seconds},
              {"samples_per_s", report.samples_per_s},
              {"images_per_s", report.samples_per_s},  // its name before there was text
              {"bubble", report.bubble}};
  if (report.loss_scale) object["loss_scale"] = *report.loss_scale;
  object["stages"] = std::move(stages);
  return write_line(line_of(object));
}

result<void> json_lines::write(const evaluation_report& report) {
  return write_line(line_of({{"eval_step", report.eval_step},
                             {"accuracy", report.accuracy},
                             {"eval_loss", report.eval_loss}}));
}

result<void> json_lines::write_line(const std::string& line) {
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() ||
      std::fflush(file_.get()) != 0)
    return cannot_write(path_);
  return {};
}

}  // namespace troupe::cluster
