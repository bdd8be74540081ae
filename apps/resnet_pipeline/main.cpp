#include "apps/resnet_pipeline/application.hpp"

int main(int argc, char** argv) {
  return troupe::apps::run_program(troupe::apps::resnet_application(), argc, argv);
}
